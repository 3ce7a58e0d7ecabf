// Package save writes models to folders, in the layouts of diffusers and of mflux,
// with weights that are quantized, changed by LoRAs or brought to another dtype.
//
// A model is planned first: all its tensors with their names, forms and places
// (plan.go, from part.go, entry.go and place.go). Then one tensor after the other is
// read and written (write.go), to a folder that gets its name at the end (folder.go).
package save

// Model writes a model to a folder, which must not be there yet, or be empty, unless
// it holds a model and Overwrite is set. It reads and writes one tensor after the
// other. The folder appears, or is replaced, when all of it is written: whoever stops
// it before finds nothing there, or what was there. What the disk has no room for is
// an error before the first byte. It must run on the MLX thread, in a job whose
// context stops it.
func Model(src Source, dir string, o Options) (*Report, error) {
	to, err := newTarget(dir, o.Overwrite)
	if err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &plan{src: src, o: &o, layout: o.Layout}
	defer p.close() // after a panic too, which is how a job is interrupted
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
