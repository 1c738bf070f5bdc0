"""What racks are made of."""

KIND = "oak"
