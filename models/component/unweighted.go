package component

// Classes without weights, which model_index.json lists too.
var (
	CLIPTokenizer      = &Class{Name: "CLIPTokenizer", Library: "transformers", Role: Tokenizer}
	T5TokenizerFast    = &Class{Name: "T5TokenizerFast", Library: "transformers", Role: Tokenizer}
	Qwen2Tokenizer     = &Class{Name: "Qwen2Tokenizer", Library: "transformers", Role: Tokenizer}
	Qwen2TokenizerFast = &Class{Name: "Qwen2TokenizerFast", Library: "transformers", Role: Tokenizer}
	TokenizersBackend  = &Class{Name: "TokenizersBackend", Library: "transformers", Role: Tokenizer}

	FlowMatchEulerDiscreteScheduler = &Class{Name: "FlowMatchEulerDiscreteScheduler", Library: "diffusers", Role: Scheduler}

	Qwen2VLProcessor = &Class{Name: "Qwen2VLProcessor", Library: "transformers", Role: Processor}
	Qwen3VLProcessor = &Class{Name: "Qwen3VLProcessor", Library: "transformers", Role: Processor, Tokenizer: true}
	PixtralProcessor = &Class{Name: "PixtralProcessor", Library: "transformers", Role: Processor, Tokenizer: true}
)
