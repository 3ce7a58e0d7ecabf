package mlx

import (
	"strings"
	"testing"
)

func TestCleanMessage(t *testing.T) {
	for in, want := range map[string]string{
		"[add] Shapes (3) and (4) at /home/me/src/mlx-c/mlx/c/ops.cpp:123":        "[add] Shapes (3) and (4)",
		"[add] failed at /Users/me/My Projects/build/mlx-c/mlx/c/ops.cpp:7":       "[add] failed",
		"Failed at 3 at /x/mlx/c/ops.h:7":                                         "Failed at 3",
		"two\nlines at /x/mlx/c/ops.cpp:7":                                        "two\nlines",
		"relative at mlx/c/io.cpp:1":                                              "relative",
		"[eval] in /home/me/mlx/mlx/backend/cpu/eval.cpp here at /x/c/ops.cpp:1":  "[eval] in mlx/backend/cpu/eval.cpp here",
		"[load] Failed to open file /data/mlx/flux.safetensors at /x/c/io.cpp:12": "[load] Failed to open file /data/mlx/flux.safetensors",
		"no place": "no place",
		"":         "",
	} {
		if got := cleanMessage(in); got != want {
			t.Errorf("%q: found %q, expected %q", in, got, want)
		}
	}
}

// TestMetalHints checks that the failures that macOS and Metal cause have a hint.
func TestMetalHints(t *testing.T) {
	// the messages are those of MLX around Metal's
	for in, hint := range map[string]string{
		"Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).":               "a smaller image, or fewer",
		"Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang).":                     EnvKernels + "=0",
		"Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity).": "the display sleep",
		"Ignored (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored).":                     "start gomflux again",
		"Innocent Victim (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim).":                 "try again",
		"Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory).":                "gomflux models --mac",
		"9 bytes which is greater than the maximum allowed buffer size of 8 bytes.":                  "Metal limits",
	} {
		got := cleanMessage(in + " at /x/mlx/c/transforms.cpp:73")
		if !strings.HasPrefix(got, in+" (") || !strings.Contains(got, hint) || !strings.HasSuffix(got, ")") {
			t.Errorf("%s: found %q, expected a hint with %q", in, got, hint)
		}
	}
}

// TestTakeMessage checks that a message is used once: a later failure without a message does
// not repeat it.
func TestTakeMessage(t *testing.T) {
	defer func(before string) { lastMessage = before }(lastMessage)
	lastMessage = "[add] failed"
	for _, want := range []string{"[add] failed", "operation failed without a message"} {
		if got := takeMessage(); got != want {
			t.Errorf("found %q, expected %q", got, want)
		}
	}
}
