// Package tuning measures on a machine which of several ways to compute the same is the fastest
// there, keeps the result in a profile, and sets the runtime to it. Nothing reads a profile by
// itself: only a program that calls [Use] computes with one, so tests and comparisons with the
// reference never do.
package tuning
