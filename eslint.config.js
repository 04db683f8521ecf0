import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: [".venv/", "site/", "build/"] },
  js.configs.recommended,
  {
    files: ["src/glassgpt/explorer/page/**/*.js"],
    languageOptions: { globals: globals.browser },
    rules: {
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
      // Text enters the page as text only.
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML", "write"].map((property) => ({ property, message: "Use el() and text nodes." })),
      ],
    },
  },
];
