package main

import (
	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/parity/debug"
	"github.com/gomflux/gomflux/picture"
)

// generateOptions are the flags of gomflux generate and gomflux edit.
type generateOptions struct {
	modelFlags
	weightFlags
	edits                bool // the model is shown the images
	lowRAM               bool
	prompts, promptFiles []string
	negative             optional[string]
	seeds                seedList
	autoSeeds, batchSize optional[int]
	steps                optional[int]
	height, width        optional[int]
	guidance             optional[float64]
	maxSequenceLength    optional[int]
	refuseLongPrompts    bool
	scheduler            optional[gomflux.Scheduler]
	rng                  optional[gomflux.RNG]
	images               fileNames // one to start from, or those to edit
	imageStrength        optional[float64]

	output               string
	overwrite            bool
	sidecar, noMetadata  bool
	config               string
	stepwise             string
	preview, show        optional[termpic.Protocol]
	json, verbose, quiet bool
	inside               debugFlags
	promptGiven          bool
	sources              []picture.SourceImage // the images
	recordedFrom         []picture.SourceImage // as config has them, nil where they are given
	modelRecorded        bool                  // by config, and not given
	lorasRecorded        bool                  // likewise
	made                 map[string]bool       // names of pictures
	cut                  map[promptCut]bool    // what was warned of
}

// A generation is what the flags ask for, read and checked as far as that goes
// without a model.
type generation struct {
	options  gomflux.Options
	prompts  []string
	seeds    []uint64 // those that are known: given ones, or those drawn so far
	each     int      // pictures of a prompt
	pictures int
	recorded *picture.Found // what --config-from-metadata read
}

// A promptCut is what was cut off a prompt, or with "" off the negative prompt,
// which all pictures have.
type promptCut struct {
	prompt string
	gomflux.Cut
}

// debugFlags are the flags of gomflux generate and gomflux edit that look inside
// of a run.
type debugFlags struct {
	options debug.Options
	load    []string
	logDir  string

	tree    *debug.Tree
	session *debug.Session // nil without such flags
}
