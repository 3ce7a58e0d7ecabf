"""Small random diffusers pipelines, and the tensors that diffusers computes with them."""
