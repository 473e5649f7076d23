"""What all ops share between the public function and the kernel launch: checks, the call cache and
its fast path, launching, allocation, registration with torch. No op is defined here.
"""
