import { put } from "../draw.js";
import { GlassView } from "../view.js";

class GlassTower extends GlassView {
  render() {
    put(this, "tower");
  }
}

customElements.define("glass-tower", GlassTower);
