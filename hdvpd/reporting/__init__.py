"""What is written for people and kept: durable files, tables, means with their intervals."""
