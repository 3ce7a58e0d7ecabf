package mlx

// evalWatcher is called around every evaluation. It belongs to the MLX thread.
var evalWatcher func() (done func())

// WatchEval calls f before every evaluation, and the function that f returns after it, until
// stop. An operation that computes at once, on the host, counts as an evaluation, inside which its
// inputs are evaluated. WatchEval must be called on the MLX thread, as must stop. f may evaluate
// arrays, for which it is called again.
func WatchEval(f func() (done func())) (stop func()) {
	outer := evalWatcher
	evalWatcher = f
	return func() { evalWatcher = outer }
}

// watched calls the watcher of WatchEval, if there is one.
func watched() (done func()) {
	if evalWatcher == nil {
		return func() {}
	}
	return evalWatcher()
}
