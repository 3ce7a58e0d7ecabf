package mlx_test

func helper(mode string) int { return 1 }
