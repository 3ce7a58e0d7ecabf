package gomflux

import (
	"errors"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/mlx"
)

// TestBatchError: what MLX says where memory ends is an error about the batch.
func TestBatchError(t *testing.T) {
	for _, message := range []string{
		"[malloc] Unable to allocate 17179869184 bytes.",
		"[metal::malloc] Attempting to allocate 34359738368 bytes which is greater than the maximum allowed buffer size of 22613000192 bytes.",
		"[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
		"cudaMallocAsync(&data, size, stream) failed: out of memory",
	} {
		failed := &mlx.Error{Message: message}
		err := batchError(failed, 8)
		if !errors.Is(err, ErrMemory) || !errors.Is(err, failed) || !strings.HasPrefix(err.Error(), "not enough memory for 8 pictures at once: mlx: ") {
			t.Errorf("%s: error %v", message, err)
		}
		if err := batchError(failed, 1); err != failed {
			t.Errorf("%s: of one picture: %v", message, err)
		}
	}
	for _, err := range []error{&mlx.Error{Message: "[matmul] shapes do not fit"}, errors.New("out of memory")} {
		if got := batchError(err, 8); got != err {
			t.Errorf("%v becomes %v", err, got)
		}
	}
}
