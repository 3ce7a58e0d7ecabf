package textenc

var RelativeBucket = relativeBucket
