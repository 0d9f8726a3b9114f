"""What an operator, a collective, a conversion and a block cost: seconds and bytes."""
