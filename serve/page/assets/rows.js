// Lines of a list from which one is chosen or deleted.

// row returns a line with a name, which calls use, and a button that calls remove.
export function row(name, hint, use, remove) {
  const item = document.createElement("li");
  item.className = "row";
  const choose = document.createElement("button");
  choose.type = "button";
  choose.textContent = name;
  choose.title = hint;
  choose.addEventListener("click", use);
  const del = document.createElement("button");
  del.type = "button";
  del.textContent = "Delete";
  del.setAttribute("aria-label", `Delete ${name.slice(0, 80)}`);
  del.addEventListener("click", remove);
  item.append(choose, del);
  return item;
}
