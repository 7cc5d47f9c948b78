// Marks what is wider than its box, so that the style sheet can show that it goes on to the side, and breaks long names.
(function () {
  const BOXES = ".md-typeset__scrollwrap, .picture, .md-typeset pre > code"

  function mark(box) {
    const rest = box.scrollWidth - box.clientWidth - box.scrollLeft
    box.classList.toggle("more-right", rest > 2)
    box.classList.toggle("more-left", box.scrollLeft > 2)
  }

  function watch() {
    for (const box of document.querySelectorAll(BOXES)) {
      if (box.dataset.watched) continue
      box.dataset.watched = "yes"
      box.addEventListener("scroll", () => mark(box), { passive: true })
      new ResizeObserver(() => mark(box)).observe(box)
      for (const inside of box.children) new ResizeObserver(() => mark(box)).observe(inside)
      mark(box)
    }
  }

  // A long name in a table may break between its words, so that the other columns keep their width.
  function soften() {
    for (const name of document.querySelectorAll(".md-typeset td code")) {
      if (name.children.length || name.textContent.length < 28) continue
      name.innerHTML = name.innerHTML.replace(/::|[_/.,=]/g, "$&<wbr>")
    }
  }

  soften()
  // The theme puts tables into their boxes after the page was loaded.
  window.addEventListener("load", () => setTimeout(watch, 100))
})()
