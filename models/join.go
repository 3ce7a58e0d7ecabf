package models

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
)

// JoinGroup connects this process with those that were started together with it, as MLX's environment
// variables describe them. It returns nil for a process that is alone, without MLX_RANK.
func JoinGroup() (*mlx.Group, error) {
	rank := os.Getenv("MLX_RANK")
	if rank == "" {
		return nil, nil
	}
	if n, err := strconv.Atoi(rank); err != nil || n < 0 {
		return nil, errs.Requestf("environment variable MLX_RANK is %q: must be a number from 0", rank)
	}
	backend, err := groupBackend(mlx.GroupBackends())
	if err != nil {
		return nil, err
	}
	return mlx.JoinGroup(backend)
}

// groupBackend returns the backend that the environment describes, of those that the library has.
func groupBackend(available []string) (string, error) {
	for _, backend := range []struct{ name, variable string }{
		{"nccl", "NCCL_HOST_IP"}, {"jaccl", "MLX_IBV_DEVICES"}, {"ring", "MLX_HOSTFILE"},
	} {
		switch found := os.Getenv(backend.variable) != ""; {
		case found && slices.Contains(available, backend.name):
			return backend.name, nil
		case found && backend.name != "nccl": // whose address a process with ring may have too
			return "", fmt.Errorf("environment variable %s is for MLX's backend %s, which this library does not have (it has %s)",
				backend.variable, backend.name, strings.Join(available, ", "))
		}
	}
	return "", errs.Requestf("MLX_RANK is set, but none of MLX_HOSTFILE, NCCL_HOST_IP and MLX_IBV_DEVICES: they tell where the other " +
		"processes are (gomflux launch sets them)")
}
