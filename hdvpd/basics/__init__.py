"""What every room uses: array types, geometry, layers; a user's errors, durable files, tables."""
