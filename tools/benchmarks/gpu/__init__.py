"""`tools.gpu`: everything that needs a CUDA device, in parts that each leave a result and can go on later."""
