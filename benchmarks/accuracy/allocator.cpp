// CPU allocator of torch that counts the bytes of live blocks, whichever thread frees them.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace {

std::mutex guard;
std::unordered_map<void*, size_t> sizes;
int64_t live = 0;
int64_t peak = 0;

void add(void* block, size_t size) {
  std::lock_guard<std::mutex> hold(guard);
  sizes.emplace(block, size);
  live += static_cast<int64_t>(size);
  if (live > peak) peak = live;
}

void end(void* block) {
  if (block == nullptr) return;
  {
    // Before the memory is given back: another thread may get the same address at once.
    std::lock_guard<std::mutex> hold(guard);
    auto found = sizes.find(block);
    live -= static_cast<int64_t>(found->second);
    sizes.erase(found);
  }
  c10::free_cpu(block);
}

class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* block = c10::alloc_cpu(size);
    if (block != nullptr) add(block, size);
    return {block, block, &end, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &end; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};

Counting counting;

}  // namespace

extern "C" {

void meter_install() { c10::SetCPUAllocator(&counting, 255); }

// Tensors keep their blocks' own way to end, so those counted stay so.
void meter_remove(void* before) {
  c10::SetCPUAllocator(static_cast<c10::Allocator*>(before), 255);
}

void* meter_before() { return c10::GetCPUAllocator(); }

void meter_begin() {
  std::lock_guard<std::mutex> hold(guard);
  peak = live;
}

int64_t meter_live() {
  std::lock_guard<std::mutex> hold(guard);
  return live;
}

int64_t meter_peak() {
  std::lock_guard<std::mutex> hold(guard);
  return peak;
}
}
