package modeltest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// WriteLoRA writes a LoRA for a model in diffusers' layout: random matrices of rank
// 2 for the transformer's queries, of a seed, under the names that diffusers gives
// them. Names of further modules can be given, which get matrices of 8x8.
func WriteLoRA(path, model string, seed uint64, modules ...string) error {
	ck, err := checkpoint.OpenCheckpoint(os.DirFS(model), "transformer")
	if err != nil {
		return err
	}
	defer ck.Close()
	const rank = 2
	random := rand.New(rand.NewPCG(seed, 0))
	var list []*checkpoint.Array
	add := func(module string, rows, columns int) error {
		for _, part := range []struct {
			name          string
			rows, columns int
		}{{"lora_A", rank, columns}, {"lora_B", rows, rank}} {
			values := make([]float32, part.rows*part.columns)
			for i := range values {
				values[i] = float32(random.NormFloat64() / 2)
			}
			t, err := checkpoint.FromFloat32(fmt.Sprintf("transformer.%s.%s.weight", module, part.name),
				[]int{part.rows, part.columns}, values)
			if err != nil {
				return err
			}
			list = append(list, t)
		}
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(ck.Tensors)) {
		module, ok := strings.CutSuffix(name, ".to_q.weight")
		if shape := ck.Tensors[name].Shape; ok && len(shape) == 2 {
			if err := add(module+".to_q", shape[0], shape[1]); err != nil {
				return err
			}
		}
	}
	for _, module := range modules {
		if err := add(module, 8, 8); err != nil {
			return err
		}
	}
	return checkpoint.WriteFile(path, list, map[string]string{"format": "pt"})
}
