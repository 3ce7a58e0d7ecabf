// Package save writes models to folders in the layouts of diffusers and mflux. It can
// quantize the weights, bake LoRAs into them, and convert them to another dtype.
//
// Saving starts with a plan of all tensors, with their names, shapes and files
// (plan.go, component.go, entry.go, place.go). Then tensors are read and written one
// by one (write.go) to a temporary folder, which is renamed at the end (folder.go).
package save

// Model writes a model to a folder. The folder must not exist or be empty, unless it
// holds a model and Overwrite is set. It appears, or is replaced, after everything was
// written, so an interruption leaves it as it was. It is an error if the disk does not
// have enough free space, which is checked before writing. Model must run on the MLX
// thread, in a job whose context stops it.
func Model(src Source, dir string, o Options) (*Report, error) {
	to, err := newTarget(dir, o.Overwrite)
	if err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &plan{src: src, o: &o, layout: o.Layout}
	defer p.close() // also after a panic, which is how a job is interrupted
	if err := p.make(); err != nil {
		return nil, err
	}
	if err := to.begin(p.total); err != nil {
		return nil, err
	}
	defer to.discard()
	w := &writer{plan: p, dir: to.work, report: &Report{
		Folder: dir, Layout: p.layout, Quantization: p.level, Bytes: p.total, Left: p.left,
	}}
	if p.loras != nil {
		w.report.LoRAs = p.loras.Reports()
	}
	if err := w.write(); err != nil {
		return nil, err
	}
	if err := to.commit(); err != nil {
		return nil, err
	}
	return w.report, nil
}
