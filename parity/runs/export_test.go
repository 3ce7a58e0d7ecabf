package runs

// Unlock drops the lock of a run, as the end of its process does.
func (r *Run) Unlock() { r.unlock() }
