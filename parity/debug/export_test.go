package debug

// SetCheckpoints sets how many checkpoint files a run has written.
func (r *Run) SetCheckpoints(n int) { r.checkpoints = n }
