"""``omnidraft profile``: where time, memory and energy go, on this machine or a simulated one."""
