// Cargo asks for a target; see Cargo.toml.
