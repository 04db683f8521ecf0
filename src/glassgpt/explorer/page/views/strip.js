import { put } from "../draw.js";
import { GlassView } from "../view.js";

class GlassStrip extends GlassView {
  render() {
    put(this, "strip");
  }
}

customElements.define("glass-strip", GlassStrip);
