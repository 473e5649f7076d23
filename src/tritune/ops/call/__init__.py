"""The steps from an op's public function to its launches: argument checks, the call cache with its
fast path, tracing of launches, allocation, registration with torch. No op is defined here.
"""
