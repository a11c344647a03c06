"""`ciel memory`: volumes over the memory of other machines."""
