package cli

import (
	"strings"
	"testing"
)

func TestFitWarning(t *testing.T) {
	flux := weights{ofTime: 0.27,
		sizes: map[string]int64{"text_encoder": 246e6, "text_encoder_2": 9.5e9, "transformer": 23.8e9, "vae": 168e6}}
	saved := flux // by mflux, without a class
	saved.quantized, saved.ofTime = true, 0
	zimage := weights{sizes: map[string]int64{"text_encoder": 8e9, "transformer": 12.3e9, "vae": 168e6}}
	qwen := weights{sizes: map[string]int64{"text_encoder": 16.6e9, "transformer": 40.9e9, "vae": 254e6}, ofTime: 0.33}
	const one = "; --low-ram has one component in memory at a time"
	const apart = one + ", and frees the transformer's layers for the timestep before the steps"
	for _, test := range []struct {
		weights
		memory int64
		want   string // its end; "" for no warning
	}{
		{saved, 24e9, "it does not fit even with --low-ram"},
		{saved, 40e9, "it fits with --low-ram (about 29.96 GB)" + one},
		{saved, 64e9, ""},
		{flux, 42.2e9, ""},
		{flux, 40e9, "the model may not fit into memory: its weights have 33.71 GB, and this machine has 40.00 GB " +
			"for weights and computation; " +
			"it fits with --low-ram (about 21.93 GB) or -q 8 (about 22.49 GB)" + apart},
		{flux, 22e9, "it fits with --low-ram (about 21.93 GB) or -q 8 --low-ram (about 11.75 GB)" + apart},
		{flux, 16.5e9, "it fits with -q 8 --low-ram (about 11.75 GB) or -q 4 (about 12.00 GB)" + apart},
		{flux, 9e9, "it fits with -q 4 --low-ram (about 6.32 GB)" + apart},
		{flux, 6e9, "it does not fit even with -q 4 --low-ram"},
		{zimage, 20e9, "it fits with --low-ram (about 15.59 GB) or -q 8 (about 13.69 GB)" + one},
		{qwen, 16.1e9, "it fits with -q 4 --low-ram (about 9.95 GB)" + apart},
		{qwen, 0, ""},
		{weights{}, 8e9, ""},
		{weights{sizes: map[string]int64{".": 10e9}}, 12e9, "it fits with -q 8 (about 6.64 GB)"},
	} {
		got := test.fitWarning(test.memory)
		if !strings.HasSuffix(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%v in %d: %q, expected %q", test.sizes, test.memory, got, test.want)
		}
	}
}

func TestMemoryWarning(t *testing.T) {
	const want = "decoding an image of 2048x1024 needs about 3.00 GB of memory, even in strips, and 2.00 GB are free"
	if got := memoryWarning("decoding", 3e9, 2e9, 1024, 2048); got != want {
		t.Errorf("%q, expected %q", got, want)
	}
	for _, free := range []int64{0, 3e9, 4e9} { // 0 is not known
		if got := memoryWarning("decoding", 3e9, free, 1024, 2048); got != "" {
			t.Errorf("with %d bytes free: %q", free, got)
		}
	}
}
