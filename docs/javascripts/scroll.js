// Tables, pictures and code that are wider than their box: long names break, on a phone a table becomes a list, and the
// style sheet shows where the rest goes on to the side.
(function () {
  const BOXES = ".md-typeset__scrollwrap, .picture, .md-typeset pre > code"
  const NAMES = ".md-typeset :not(pre) > code, .md-typeset h2, .md-typeset h3, .md-typeset h4"
  const LINES = ":is(.language-sh, .language-text) pre > code"
  const PHONE = window.matchMedia("(max-width: 44.9375em)")

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

  // A long name may break between its words, so that the other columns keep their width.
  function soften(element) {
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT)
    const long = []
    while (texts.nextNode()) if (/\S{20}/.test(texts.currentNode.data)) long.push(texts.currentNode)
    for (const text of long) {
      const parts = text.data.split(/(?<=::|[_/.,=])/)
      text.replaceWith(...parts.flatMap((part, at) => (at ? [document.createElement("wbr"), part] : [part])))
    }
  }

  // An option of a command stays whole where its line breaks.
  function join(code) {
    const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT)
    const named = []
    while (texts.nextNode()) if (/(?<!\S)--?\w/.test(texts.currentNode.data)) named.push(texts.currentNode)
    for (const text of named) {
      const parts = text.data.split(/((?<!\S)--?\w[\w-]*)/)
      text.replaceWith(...parts.map((part, at) => (at % 2 ? option(part) : part)))
    }
  }

  function option(name) {
    const whole = document.createElement("span")
    whole.className = "option"
    whole.textContent = name
    return whole
  }

  // A long command or message breaks. A table scrolls, and so do columns on a phone, where every row would break.
  function wrap() {
    for (const code of document.querySelectorAll(LINES)) {
      const columns = PHONE.matches ? /\S {2,}\S|^[+|]/m : /^[+|]/m
      code.classList.toggle("prose", Boolean(code.closest(".language-sh")) || !columns.test(code.textContent))
    }
  }

  // On a phone, a table that is wider than the screen, or has a column of single words, shows each row as a list with
  // the columns' names.
  function stack() {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
      const table = box.querySelector("table:not([class])")
      if (!table) continue
      delete table.dataset.stacked
      const cells = [...table.querySelectorAll("td:not(:first-child)")]
      table.toggleAttribute("data-short", cells.every((cell) => cell.textContent.trim().length < 8))
      const inner = cells.filter((cell) => cell.nextElementSibling)
      const narrow = inner.some((cell) => cell.offsetHeight > 2 * cell.offsetWidth)
      if (!PHONE.matches || (box.scrollWidth <= box.clientWidth + 2 && !narrow)) continue
      const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim())
      for (const row of table.tBodies[0].rows) {
        for (const cell of row.cells) cell.dataset.column = names[cell.cellIndex] || ""
      }
      table.dataset.stacked = "yes"
    }
  }

  document.querySelectorAll(`${LINES}, .md-typeset :not(pre) > code`).forEach(join)
  document.querySelectorAll(NAMES).forEach(soften)
  wrap()
  PHONE.addEventListener("change", () => (wrap(), stack()))
  // The theme puts tables into their boxes after the page was loaded.
  window.addEventListener("load", () => setTimeout(() => (stack(), watch()), 100))
})()
