"""Math functions as vector code, for scalars and vectors alike; no IR of the backend is used."""
