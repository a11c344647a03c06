"""Write-once objects by id: the interface every store keeps, and the store of plain files.

Start with `interface`. The engine finds stores by name (`ciel.stores`), asks for their capabilities
and never names one; a new one inherits `ciel.testing.store_suite` to prove itself (CIB-54).
"""
