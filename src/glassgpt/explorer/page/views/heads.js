import { put } from "../draw.js";
import { GlassView } from "../view.js";

class GlassHeads extends GlassView {
  render() {
    put(this, "heads");
  }
}

customElements.define("glass-heads", GlassHeads);
