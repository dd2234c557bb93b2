"""The kernels of finite networks, of any module."""
