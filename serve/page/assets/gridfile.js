// A grid as one PNG, with its labels.

const longest = 8192; // pixels of a side
const lines = 3; // of a label

// wrapped returns a text as lines that are at most as wide as there is room.
function wrapped(draw, text, width) {
  const all = [];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const longer = all.length > 0 ? `${all.at(-1)} ${word}` : word;
    if (all.length > 0 && draw.measureText(longer).width <= width) all[all.length - 1] = longer;
    else all.push(word);
  }
  if (all.length > lines) all.splice(lines, all.length, `${all[lines - 1]} …`);
  return all;
}

// drawGrid lets the browser save a grid.
export async function drawGrid({ columns, rows, cells }) {
  const images = [];
  for (const cell of cells.values()) {
    if (!cell.picture) continue;
    const img = new Image();
    img.src = cell.picture.url;
    await img.decode();
    images.push({ img, at: cell.at });
  }
  const width = Math.max(...images.map(({ img }) => img.naturalWidth));
  const height = Math.max(...images.map(({ img }) => img.naturalHeight));
  const [nx, ny] = [columns.length, rows.length];
  const font = Math.max(14, Math.round(width / 24)), gap = Math.ceil(font / 2);
  const left = rows.some(Boolean) ? Math.max(6 * font, Math.round(width / 3)) : 0;
  const top = columns.some(Boolean) ? lines * Math.ceil(1.3 * font) + gap : 0;
  const full = [left + nx * (width + gap) + gap, top + ny * (height + gap) + gap];
  const scale = Math.min(1, longest / full[0], longest / full[1]);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = full.map(n => Math.floor(scale * n));
  const draw = canvas.getContext("2d");
  draw.scale(scale, scale);
  draw.fillStyle = "#fff";
  draw.fillRect(0, 0, ...full);
  draw.fillStyle = "#1c1c1c";
  draw.font = `${font}px system-ui, sans-serif`;
  draw.textBaseline = "top";
  const x = i => left + gap + i * (width + gap), y = j => top + gap + j * (height + gap);
  const write = (text, atX, atY, room) => {
    wrapped(draw, text ?? "", room).forEach((line, n) => draw.fillText(line, atX, atY + n * Math.ceil(1.3 * font), room));
  };
  columns.forEach((text, i) => write(text, x(i), gap, width));
  rows.forEach((text, j) => write(text, gap, y(j), left - gap));
  for (const { img, at } of images) draw.drawImage(img, x(at[0]), y(at[1]));
  const blob = await new Promise(resolve => { canvas.toBlob(resolve, "image/png"); });
  if (!blob) throw new Error("This browser cannot draw a grid of that size.");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `grid-${nx}x${ny}.png`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
