// The page's style sheet and script. Colours are those of Okabe and Ito, which readers with any
// colour vision tell apart; no meaning is carried by colour alone.
#include "lockstep/explain/page_parts.h"

namespace lockstep::page {

const char* const kStyle = R"(
:root{color-scheme:light dark;--ink:#1b1b1b;--dim:#5a5a5a;--paper:#fff;--card:#f6f6f4;--rule:#d5d5d0;
--compute:#0072b2;--communication:#d55e00;--input:#009e73;--copy:#56b4e9;--wait:#e69f00;
--host:#cc79a7;--start:#7a7a7a;--validation:#a08a00;--checkpoint:#6a51a3}
@media(prefers-color-scheme:dark){:root{--ink:#ececec;--dim:#a8a8a8;--paper:#141416;--card:#1f1f23;
--rule:#3b3b40;--compute:#4aa8e0;--communication:#f0803c;--input:#2fc79a;--copy:#8fd0f5;
--wait:#f3bb3e;--host:#e2a0c6;--start:#9a9a9a;--validation:#d8c74a;--checkpoint:#a99bdc}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:60rem;background:var(--paper);color:var(--ink);
font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.15rem;margin:0 0 .6rem}
section{background:var(--card);border-radius:.6rem;padding:.9rem;margin:1rem 0}
figure{margin:0}figcaption{color:var(--dim);margin-top:.6rem}
small,.v{color:var(--dim);font-size:.85rem}.v{float:right;text-align:right;margin-left:.6rem}
ol,ul{list-style:none;margin:0;padding:0}svg{display:block;width:100%}
.tiles{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0}
.tiles li{flex:1 1 8rem;background:var(--card);border-radius:.6rem;padding:.6rem .9rem}
.tiles b{display:block;font-size:1.5rem}
.waterfall li,.bars li{clear:both;overflow:hidden;margin-top:.3rem}
.waterfall svg,.bars svg{clear:both;height:1.6rem}.timeline svg{height:1.5rem}
.timeline b,.bars b,.waterfall b{font-weight:600;font-size:.9rem}
.base{stroke:var(--rule);stroke-width:1;vector-effect:non-scaling-stroke}
.link{stroke:var(--dim);stroke-width:1;stroke-dasharray:2 3;vector-effect:non-scaling-stroke}
.plot{position:relative;height:15rem;margin:1.6rem .6rem 1.4rem 4.2rem}
.plot svg{height:100%;overflow:visible;border-left:1px solid var(--dim);
border-bottom:1px solid var(--dim)}
.yl{position:absolute;left:-4.2rem;top:-1.6rem;color:var(--dim);font-size:.8rem}
.yt,.xt{position:absolute;font-size:.75rem;color:var(--dim);white-space:nowrap}
.yt{right:100%;transform:translateY(-50%);margin-right:.35rem}
.xt{top:100%;transform:translateX(-50%);margin-top:.2rem}
.xl{text-align:center;color:var(--dim);font-size:.8rem;margin:0}
.ends{display:flex;justify-content:space-between;color:var(--dim);font-size:.8rem;margin:0}
.grid{stroke:var(--rule);stroke-width:1;vector-effect:non-scaling-stroke}
.line,.dot{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.dot{stroke-width:8;stroke-linecap:round}
.band{fill:var(--compute);opacity:.2}
.line.dash{stroke-dasharray:7 4}.line.ideal{stroke-dasharray:2 4}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.85rem;margin-top:.5rem}
.legend i{display:inline-block;width:.9rem;height:.9rem;border-radius:.2rem;margin-right:.35rem;
vertical-align:-.1rem}
rect.ideal,i.ideal{fill:var(--dim);background:var(--dim)}.line.ideal{stroke:var(--dim)}
rect.lost{fill:var(--communication)}rect.gained{fill:var(--input)}rect.got{fill:var(--compute)}
.compute{fill:var(--compute);background:var(--compute)}
.communication{fill:var(--communication);background:var(--communication)}
.input{fill:var(--input);background:var(--input)}.copy{fill:var(--copy);background:var(--copy)}
.wait{fill:var(--wait);background:var(--wait)}.host{fill:var(--host);background:var(--host)}
.start{fill:var(--start);background:var(--start)}
.validation{fill:var(--validation);background:var(--validation)}
.checkpoint{fill:var(--checkpoint);background:var(--checkpoint)}
.timeline rect{opacity:.5}.timeline rect.crit{opacity:1}
.error{stroke:var(--ink);stroke-width:1.5;fill:none;vector-effect:non-scaling-stroke}
.c0,.m0{--c:var(--compute)}.c1,.m1{--c:var(--communication)}.c2,.m2{--c:var(--input)}
.c3,.m3{--c:var(--copy)}.c4,.m4{--c:var(--wait)}.c5{--c:var(--host)}
.line.c0,.line.c1,.line.c2,.line.c3,.line.c4,.line.c5,
.dot.c0,.dot.c1,.dot.c2,.dot.c3,.dot.c4,.dot.c5{stroke:var(--c)}
.area{fill:var(--c)}.legend i[class^=c],.legend i[class^=m]{background:var(--c)}
.legend i.copy{background:var(--copy)}.legend i.compute{background:var(--compute)}
.legend i.communication{background:var(--communication)}.legend i.checkpoint{background:var(--checkpoint)}
.advice li{margin:.8rem 0;overflow:hidden}.advice p{margin:.2rem 0;clear:both}
.command{position:relative;background:var(--paper);border:1px solid var(--rule);border-radius:.4rem;
padding:.6rem;margin:.3rem 0;white-space:pre-wrap;font:.85rem/1.4 ui-monospace,monospace}
.command span{display:inline-block;max-width:100%}
.command button{float:right;margin-left:.5rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;margin:.4rem 0}
th,td{text-align:left;overflow-wrap:normal;padding:.15rem .8rem .15rem 0;border-bottom:1px solid var(--rule)}
summary{cursor:pointer;margin-top:.6rem;font-size:.9rem}
output{display:block;min-height:1.5em;font-size:.9rem}
footer{color:var(--dim);font-size:.85rem}
)";

const char* const kScript = R"(
for (const pre of document.querySelectorAll('.command')) {
  const code = pre.querySelector('code');
  const button = document.createElement('button');
  button.type = 'button';
  button.textContent = 'Copy';
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand('copy');
    }
    button.textContent = 'Copied';
  });
  pre.prepend(button);
}
const shown = document.querySelector('output.span');
for (const event of ['pointerover', 'click']) {
  document.querySelector('.timeline')?.addEventListener(event, (at) => {
    const title = at.target.querySelector?.('title');
    if (at.target.tagName === 'rect' && title) shown.textContent = title.textContent;
  });
}
)";

}  // namespace lockstep::page
