module github.com/gomflux/gomflux

go 1.26

require (
	github.com/daulet/tokenizers v1.22.1 // indirect
	github.com/ebitengine/purego v0.11.3 // indirect
)
