// Package mlx is Apple's MLX array framework for Go, through its C interface
// mlx-c 0.7, opened at run time: Metal on Macs, CUDA or the CPU on Linux.
//
// # Threads
//
// MLX keeps its streams, compile caches and random state per thread, so this package
// uses MLX on one locked OS thread only. [Do] runs functions there. Everything else in
// this package, except [Open], must be called inside a Do:
//
//	err := mlx.Do(ctx, func() error {
//		x := mlx.FromFloat32([]float32{1, 2, 3, 4}, 2, 2)
//		fmt.Println(x.Matmul(x.T()).Floats())
//		return nil
//	})
//
// # Operations and errors
//
// Operations are methods that are chained left to right, like the maths, and return no
// error. A failed operation panics with an [*Error] that has MLX's message and the
// caller's file and line; Do returns it.
//
// Arrays are lazy: operations build a graph, which [Eval] or reading elements computes.
//
// # Memory
//
// An array belongs to the scope in which it was made, and is freed when the scope ends.
// [Scope] runs a function in a scope of its own and frees all its arrays except the
// result. Each Do is a scope. [Keep] removes arrays from their scopes; the garbage
// collector frees kept arrays that are no longer referenced, as a safety net.
package mlx

//go:generate go run ./internal/gen -headers ../.setup/include -uses . -o internal/mlxc/bindings.go
