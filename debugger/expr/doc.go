// Package expr evaluates expressions on the tensors of a stopped run, in Starlark, a dialect of
// Python without files, network and clock.
//
// An [Interpreter] belongs to a debugging session. What its expressions define, also tensors, can
// be used in later ones. An [Env] has the tensors and numbers of a stop, and a [Condition] is an
// expression that is true or false at a stop.
//
// # Language
//
// In addition to Starlark there are x ** y, sum, pow and round, control flow at the top level, and
// width and precision in "%.3f" % x. As in Python, comparisons with NaN are false, and a function
// sees the latest values of global variables. Functions cannot be recursive.
//
// # Tensors
//
// Arithmetic and comparisons broadcast, element by element; the result of a comparison is a tensor
// of booleans. A number has the tensor's dtype if that is a floating-point type. Reductions return
// numbers, computed in float32 or better, or with axis=N tensors, without that axis. As in
// PyTorch, they are NaN if an element is NaN; std is the population's standard deviation, as in
// the statistics that the debugger prints, which leave out elements that are not finite.
//
// # Limits
//
// An expression can execute ten million steps and take five seconds, which are checked between two
// steps. No tensor that it makes may be larger than 1 GB, and all of them, which are in memory until
// it ends, than 4 GB. Other values are not limited.
package expr
