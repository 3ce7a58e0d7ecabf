// A writer of grey PNG files. A canvas could write them too, but browsers that protect against
// fingerprinting change what pages read from a canvas.

const signature = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];

// encodePNG returns the file of an image with a byte for each pixel.
export async function encodePNG(width, height, data) {
  const rows = new Uint8Array((width + 1) * height); // each row begins with its filter, 0 for none
  for (let y = 0; y < height; y++) rows.set(data.subarray(y * width, (y + 1) * width), y * (width + 1) + 1);
  const stream = new Blob([rows]).stream().pipeThrough(new CompressionStream("deflate"));
  const header = new DataView(new ArrayBuffer(13)); // 8 bits, grey, not interlaced
  header.setUint32(0, width);
  header.setUint32(4, height);
  header.setUint8(8, 8);
  const packed = new Uint8Array(await new Response(stream).arrayBuffer());
  const chunks = [chunk("IHDR", new Uint8Array(header.buffer)), chunk("IDAT", packed), chunk("IEND", new Uint8Array())];
  return new Blob([new Uint8Array(signature), ...chunks], { type: "image/png" });
}

// chunk returns a chunk: its length, name, body and checksum.
function chunk(name, body) {
  const out = new Uint8Array(body.length + 12);
  const view = new DataView(out.buffer);
  view.setUint32(0, body.length);
  for (let i = 0; i < 4; i++) out[4 + i] = name.charCodeAt(i);
  out.set(body, 8);
  view.setUint32(8 + body.length, checksum(out.subarray(4, 8 + body.length)));
  return out;
}

const table = new Uint32Array(256).map((_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

// checksum returns the CRC-32 of bytes.
function checksum(bytes) {
  let c = 0xffffffff;
  for (const b of bytes) c = table[(c ^ b) & 0xff] ^ (c >>> 8);
  return ~c >>> 0;
}
