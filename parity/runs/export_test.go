package runs

// SetCheckpoints sets how many checkpoint files a run has written.
func (r *Run) SetCheckpoints(n int) { r.checkpoints = n }

// Unlock drops the lock of a run, as the end of its process does.
func (r *Run) Unlock() { r.unlock() }
