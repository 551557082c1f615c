// A round as a picture: the tokens that were proposed, as a tree from the text on. What stood is
// the first line, and ends with the model's own token; below it is what was refused.

/**
 * Draw a round.
 *
 * @param {HTMLElement} list an empty place for it.
 * @param {object} round tokens, parents and accepted, as the server tells them.
 * @param {{text: string, origin: string}[]} made the tokens that came of it.
 * @param {string} before the end of the text before it.
 */
export function draw(list, round, made, before) {
  const nodes = laidOut(round, made);
  const text = { text: before, kind: "before", row: 0, parentRow: 0, column: 0, goesOn: true };
  list.replaceChildren(chip(text));
  for (const node of nodes) {
    if (node.row > node.parentRow) list.append(rail(node));
    list.append(chip(node));
  }
}

function laidOut(round, made) {
  const children = new Map();
  const add = (parent, node) => {
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(node);
  };
  const accepted = round.accepted;
  const last = accepted.at(-1) ?? -1;
  const ending = made[accepted.length];
  if (ending) {
    const text = ending.text || "end";
    add(last, { text, kind: `own ${ending.origin}`, said: "the model’s own" });
  }
  round.tokens.forEach((text, place) => {
    const at = accepted.indexOf(place);
    const kind = at < 0 ? "refused" : `stood ${made[at]?.origin ?? ""}`;
    const node = { text, kind, place, said: at < 0 ? "not taken" : "taken" };
    if (at < 0) add(round.parents[place], node);
    else children.set(round.parents[place], [node, ...(children.get(round.parents[place]) ?? [])]);
  });
  const nodes = [];
  let rows = 0;
  const place = (parent, row, column, after) => {
    (children.get(parent) ?? []).forEach((node, index) => {
      const own = index === 0 ? row : (rows += 1);
      const goesOn = children.has(node.place);
      nodes.push({ ...node, row: own, parentRow: row, column, after, goesOn });
      if (node.place !== undefined) place(node.place, own, column + 1, node.text);
    });
  };
  place(-1, 0, 1, "");
  return nodes;
}

function chip({ text, kind, row, parentRow, column, said, after, goesOn }) {
  const item = document.createElement("li");
  item.className = `chip ${kind}`;
  if (row > parentRow) item.classList.add("branch");
  if (goesOn) item.classList.add("goes-on");
  put(item, row + 1, row + 2, column);
  const shown = document.createElement("span");
  shown.textContent = visible(text);
  item.append(shown);
  if (said) {
    const unseen = document.createElement("span");
    unseen.className = "unseen";
    unseen.textContent = after ? `, ${said}, after ${after.trim()}` : `, ${said}`;
    item.append(unseen);
  }
  return item;
}

function rail(node) {
  const line = document.createElement("li");
  line.className = "rail";
  line.setAttribute("aria-hidden", "true");
  put(line, node.parentRow + 1, node.row + 2, node.column);
  return line;
}

function put(item, from, to, column) {
  item.style.gridRow = `${from} / ${to}`;
  item.style.gridColumn = `${column + 1}`;
}

function visible(text) {
  const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥");
  return shown.trim() === "" ? shown.replace(/ /g, "␣") || "∅" : shown.trim();
}
