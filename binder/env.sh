# Kernels compiled when the image is built have to fit whatever CPU it is started on.
export NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= NUMBA_NUM_THREADS=1 OMP_NUM_THREADS=1
