"""Services: objects in processes of the cluster, whose methods clients and tasks call."""
