document.querySelector('h1').dataset.script = 'ran';
