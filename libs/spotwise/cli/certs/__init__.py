"""`spotwise certs`: certificates, users and passwords of a mesh on several hosts."""
