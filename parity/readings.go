package parity

import "regexp"

// The readings of a tensor.
const (
	Free     = "free"     // the run goes on from the start with what it computed
	Isolated = "isolated" // a module gets the reference's inputs
	Own      = "own"      // so do the modules inside it; a part of the isolated reading
)

// inside are the names of tensors within a component.
var inside = regexp.MustCompile(`^(transformer|text_encoder(_\d+)?)(\.|$)|^vae\.((en|de)coder|quant_conv|post_quant_conv)`)

// The stages, backwards from pixels; steps come between vae and latents.
var stages = []string{"picture", "vae", "latents", "encode", "text", "tokenizer", "scheduler"}

// traceFile is where a run has the names of all tensors that passed.
const traceFile = "traces/taps.jsonl"
