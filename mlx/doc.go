// Package mlx is Apple's MLX array framework for Go, through its C interface
// mlx-c 0.7, opened at run time: Metal on Macs, CUDA or the CPU on Linux.
//
// # Threads
//
// MLX keeps its streams, compile caches and random state per thread, so all of
// it lives on one locked OS thread. [Do] is the only way there, and everything
// else in this package, except [Do] and [Open], must be called inside it:
//
//	err := mlx.Do(ctx, func() error {
//		x := mlx.FromFloat32([]float32{1, 2, 3, 4}, 2, 2)
//		fmt.Println(x.Matmul(x.T()).Floats())
//		return nil
//	})
//
// # Operations and errors
//
// Operations read like the maths, chained left to right, and return no error.
// A failed one panics with an [*Error] that holds MLX's message and the
// caller's file and line; Do turns it into its returned error.
//
// Arrays are lazy: an operation builds a graph, and [Eval] or a host read runs
// it.
//
// # Memory
//
// An array lives in the scope it was made in. [Scope] frees what was made
// inside it except what it returns; a whole Do is a scope; [Keep] takes arrays
// out of all scopes. The garbage collector frees kept arrays that nothing
// refers to any more, as a safety net.
package mlx

//go:generate go run ./internal/gen -headers ../.setup/include -uses . -o internal/mlxc/bindings.go
