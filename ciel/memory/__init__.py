"""Memory of other machines: servers that keep pages, and volumes over them (NET, KVB-1)."""
