// Marks what is wider than its box, so that the style sheet can show that it goes on to the side.
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

  // The theme puts tables into their boxes after the page was loaded.
  window.addEventListener("load", () => setTimeout(watch, 100))
})()
